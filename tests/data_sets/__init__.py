"""Kept data sets of earlier releases, and the script that makes one."""
