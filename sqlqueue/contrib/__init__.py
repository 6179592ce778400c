"""Apps beside the core: install those that you need. The core imports none of them."""
