"""Leave out the scripts that wrote the frameworks' logs: they need the frameworks."""

collect_ignore = ["written"]
