"""A dataset in an S3-compatible store."""
