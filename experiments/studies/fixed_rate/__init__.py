"""A study beside the panel: does n* rise at one fixed learning rate, and not at the best rate?"""
