"""Clients of long polls vanish without a word; nothing may stay behind (F-31)."""
