"Random combinations of models and parts, each compared with plain decoding by the model's full forward pass."
