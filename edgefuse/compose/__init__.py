"""The composition: the only room that knows all others, and the functions behind the verbs."""
