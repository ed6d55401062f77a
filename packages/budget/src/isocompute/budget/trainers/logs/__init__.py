"""Logs as loggers leave them, read as metrics by step; nothing here knows a trainer."""
