"""Write what heads do, token by token, to Parquet files."""
