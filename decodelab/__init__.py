"A literate laboratory for decoding: strategies you can read, certify and measure."

__version__ = "0.1.0"

from decodelab.core.parameter_docs import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
