"""The verbs: thin click functions over typed ones. What a verb needs is imported when it runs."""
