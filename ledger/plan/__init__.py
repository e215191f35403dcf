"""What a config would cost, priced before anything is taken, and what other settings would."""
