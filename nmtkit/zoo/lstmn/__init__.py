"""The LSTMN (Cheng, Dong and Lapata 2016) as a layer, a language model and an encoder-decoder."""
