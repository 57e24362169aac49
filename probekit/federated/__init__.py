"""Clients that train together: what they hold, what they are asked, and how answers add up."""
