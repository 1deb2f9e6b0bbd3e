"""Models that users can choose in the desk's forms."""
