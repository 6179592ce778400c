"""What the SQLQUEUE setting may say: its options with their defaults and bounds, read and checked together."""
