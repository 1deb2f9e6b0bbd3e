"""Run leased jobs: heartbeats, previews and the report of the outcome."""
