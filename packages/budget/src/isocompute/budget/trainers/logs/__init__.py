"""What loggers leave behind, read as metrics by step; nothing here knows a trainer."""
