"""`--engine auto`: the fastest engine on this machine that gives torch's answers, measured once and remembered."""
