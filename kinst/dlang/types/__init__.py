"""D's types and conversions between them."""
