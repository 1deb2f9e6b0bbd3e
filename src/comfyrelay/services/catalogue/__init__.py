"""What can be run: workflows, effects, their files and presets."""
