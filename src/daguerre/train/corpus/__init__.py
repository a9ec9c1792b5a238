"""Python source with permissive licenses, held out by package: from installed files to token shards."""
