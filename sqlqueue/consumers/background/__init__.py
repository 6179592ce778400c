"""Background tasks: what threads beside the loop of a consumer process do. The subscriber starts them."""
