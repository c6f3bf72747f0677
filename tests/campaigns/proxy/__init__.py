"""Faults of object stores, by a proxy in front of an S3 server that answers as a schedule says."""
