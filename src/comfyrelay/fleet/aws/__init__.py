"""A fleet as an Auto Scaling group: what it is made of, how it is made, and how AWS is asked."""
