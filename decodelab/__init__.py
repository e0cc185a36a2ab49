"A literate laboratory for decoding: strategies you can read, certify and measure."

__version__ = "0.1.0"

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
