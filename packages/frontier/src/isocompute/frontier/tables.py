"""The tables that pass between parts: the public address of ``contract.tables``."""

from .contract.tables import METRIC_PATTERN, Column, Schema, TableError, check, concat, read, schema, write

__all__ = ["METRIC_PATTERN", "Column", "Schema", "TableError", "check", "concat", "read", "schema", "write"]
