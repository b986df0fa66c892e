"""Every run tests the same examples: a red build is red again."""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("brief", settings.get_profile("fixed"), max_examples=25)
settings.load_profile("fixed")
