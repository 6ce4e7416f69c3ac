"""Definitions of topics, subscriptions and pools, stored in the database and cached."""
