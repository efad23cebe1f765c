"""Two runs side by side: two models, two settings, or one model before and after an upgrade."""
