"""The store: a Valkey or Redis server, reached by one client that shares round trips.

All other packages reach the server through `Store` and change state by Lua scripts.
"""
