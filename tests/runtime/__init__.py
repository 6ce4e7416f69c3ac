"""Tests of the runtime kit, the error tree and the configuration."""
