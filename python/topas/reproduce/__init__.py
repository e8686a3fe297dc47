"""The paper's evaluation in the simulator: Table I and Figures 1 to 5, beside the paper's figures.

``topas reproduce`` is the command; :func:`topas.reproduce.run.evaluate` the function. Needs
``pip install topas[sim]``.
"""
