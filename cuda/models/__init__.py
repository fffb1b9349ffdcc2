"""What a decoder is and where its weights come from. Read `folder`, then `spec`, then `decoder`."""
