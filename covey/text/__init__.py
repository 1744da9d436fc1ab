"""Text of others, made fit for people: hidden characters become visible, secrets are blanked, what is endless is cut."""
