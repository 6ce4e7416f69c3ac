"""Channels: HTTP pub/sub whose messages stay until they expire.

Channels are compatible with DSPS, a pub/sub server that stores its messages in Redis. They serve
the HTTP protocol of DSPS and use its store keys and values. Therefore clients of DSPS work
unmodified, and a Waystation server can use the data set of a DSPS server.
"""
