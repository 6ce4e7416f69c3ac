"""Decoders of log entries to rows of the lake: one module for each kind of log."""
