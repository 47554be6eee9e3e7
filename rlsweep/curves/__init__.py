"""Curves from anywhere: journals, MLflow, CSV, Parquet, JSONL."""
