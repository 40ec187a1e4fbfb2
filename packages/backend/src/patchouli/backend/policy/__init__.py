"""Selection: from the metadata of one request to everything its behavior asks for. Pure."""
