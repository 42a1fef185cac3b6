"""The wiring contract: which features, in which order, and which vocabulary the drafter was trained on."""
