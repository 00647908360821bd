"""Commands of kinst. Only this package prints or ends the process."""
