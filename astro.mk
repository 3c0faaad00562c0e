# The `astro dev` template started by hand, as far as that goes without containers (two minutes).
.PHONY: astro-by-hand

astro-by-hand: install
	$(BIN)/python -m tests.astro_by_hand
