"""Logs as loggers write them, read as metrics by step; nothing here depends on a trainer."""
