"""Endpoints of subscriptions: where messages go, one module for each kind."""
