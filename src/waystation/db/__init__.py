"""Databases: definitions of topics, subscriptions and pools."""
