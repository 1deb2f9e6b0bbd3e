"""What is not the same on Linux, macOS and Windows. No other module asks which system it runs on."""
