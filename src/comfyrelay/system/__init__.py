"""Operating system differences. No other package checks which system it runs on."""
