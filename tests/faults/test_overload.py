"""What the server does when descriptors or connection places run out (F-33)."""
