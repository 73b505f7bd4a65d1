"""The parts that names are made of. The names are meant to sound like names; that one exists is chance."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words(
    "Alice Amara Anna Beatriz Carla Clara Daniela Dina Elena Ellen Emma Eva Fatima Grace Hana Helen Ines Ingrid Irina "
    "Jane Julia Karin Laura Leila Lena Lucia Maria Marta Maya Mina Nadia Nina Nora Olga Paula Petra Rosa Ruth Sara "
    "Sofia Teresa Vera Yuki Zoe"
)
MEN = _words(
    "Adam Ahmed Alan Aleks Anton Ben Bruno Carlos Daniel David Emil Eric Felix Frank George Hassan Henrik Hugo Ivan "
    "Jack Jakub James Jonas Karl Kenji Leo Luca Marco Martin Mateo Max Nils Omar Oscar Paul Pedro Peter Rafael Samuel "
    "Stefan Thomas Tunde Viktor Yusuf"
)

_ENGLISH = _words(
    "Abber Ald Alder Ard Ash Ayl Bag Ban Bar Bask Beck Bel Ben Black Bod Bram Brent Brock Brom Bux Cal Carl Chad Chel "
    "Cold Cop Cors Cran Crow Dar Deep Den Der Dor Dray Dul Dun East Ed Elk Elling Els Ever Fair Fal Farn Faver "
    "Fen Fram Gar Gil Glad Glen God Graf Grim Had Hal Ham Har Hart Hather Haw Hel Hex Hind Hol Holling Hors Hun Ing "
    "Kel Ket Kil Kings Kirk Lam Lang Led Lin Lock Lud Lyd Mal Mar Mars Mel Mid Mil Mor Nant Nether Nor Oak Od Ot Ox "
    "Pad Pem Pens Pick Plym Pren Quar Rad Rams Red Rip Roch Rush Rut Sax Sea Sel Shel Sher Shir Sil Skel Sker Snel "
    "Stan Stav Strat Stur Sut Tad Tam Tav Tewkes Thorn Thur Til Tiver Tor Tren Up Ux Wad Wake Wal War Wel Wen Wes "
    "Whit Wil Win Wis Wit Wor Wych Yar Yel"
)
# One style of surname a row: beginnings and endings. Towns have other endings, so that a name tells what it names.
SURNAMES = (
    (
        _ENGLISH,
        _words(
            "bank beck brook cliffe cott croft den fell field grave greave hurst kin land ley low man mere ridge shaw "
            "side son stone tree wall ward way well wood worth"
        ),
    ),
    (
        _words(
            "Aker Ahl Alm Ber Bjor Bran Dahl Eken Ektor Fager Fjell Flod Frid Gran Grun Hag Hell Hjel Holm Ker Lager "
            "Lind Lund Malm Nord Nyl Ost Rosen Sand Sjo Skog Sten Stor Strand Sund Svan Tallen Tor Vester Wahl Wall "
            "Wester Wik"
        ),
        _words(
            "back berg blad borg dal feldt gaard gren haug holm kvist lund mark moen quist rud sen stad stedt stein "
            "strand strom vall vang vik"
        ),
    ),
    (
        _words(
            "Bab Bar Bor Cher Dan Dob Drag Fed Gor Hal Hor Jab Jan Jur Kal Kam Kol Kos Kov Krav Kuz Lis Luk Mark Mil "
            "Mirk Nov Orl Pav Petr Pol Rad Rom Sav Sok Stan Tom Urb Vas Vol Zab Zel"
        ),
        _words(
            "acek ak anek anic aric arek asik aruk avic enko elic enic escu ezic ica ich ik ikov inek ovac ovic ovan"
        ),
    ),
    (
        _words(
            "Ald Avel Bald Bar Bass Bell Ben Bon Calv Cap Carr Cast Cav Cer Col Cor Dor Fal Fab Ferr Fior Gal Gar "
            "Giord Lazz Lomb Mar Mart Mass Mel Mont Mor Oliv Pal Per Quad Rav Rin Ros Sal Sant Serr Tav Tor Val Ver Vit"
        ),
        _words(
            "acchi agni alli ameda anda ani ardi arez aro asco atti eddu elli ena enti enzo eri ero etti iano illo ini "
            "ino ola oni orra osta otti ucci uzzi"
        ),
    ),
    (
        _words(
            "Aka Ama Fuji Fuku Hama Hara Haya Hoso Ima Ishi Iwa Kata Kawa Kita Kiyo Kuro Matsu Miya Mori Naka Naga "
            "Nishi Oka Ono Saka Shira Sugi Taka Toku Tera Uchi Waka Yana Yoshi"
        ),
        _words(
            "bayashi be da do gata gawa guchi hashi kami kubo kura moto mura nishi saki suka tani waki yama zaki zawa"
        ),
    ),
    (
        _words("Abi Ade Afo Aki Ayo Baba Fola Iya Odu Ogun Ola Olu Omo Ore Owo Oye Temi Tolu"),
        _words(
            "bayo biyi bola dele fade funmi juwon kunle lade mide niran niyi sanya seun sola tayo tunji wale yemi"
        ),
    ),
)
TOWNS = (
    _ENGLISH,
    _words(
        "bourne bridge bury by chester combe dale ford gate ham haven holme mouth minster pool port stead stoke stow "
        "thorpe ton wick"
    ),
)
TOWN_PREFIXES = _words("East Great Little New North Old Port South Upper West")
COMPANIES = (
    _words(
        "Ac Al Alt Am Ar Av Bel Bri Cal Can Cen Cor Cy Dal Del Do Ec El En Er Fal Fer Gal Gen Hel Hy In Ka Lan Lu Mar "
        "Me Mon Na Ne Nor Om Or Pal Pe Pro Qua Ra Ro Sal Sen So Sy Tal Tel Ter Tra Ul Va Vel Vi Vol Xan Ze"
    ),
    _words(
        "a ba ca cu da de do fi ga li lo ma mi mo na ne no pa ra ri ro sa si ta te ti to va ve vi"
    ),
    _words(
        "bix cor dane dex dia don dyne fax gan gen lex lia lion lis lux mark mos nel net nia nix nor phar plex pro ra "
        "ria ron san sys tek tis tor tra tron tyx vance via vis xa zon"
    ),
)
STORMS = (
    _words(
        "Al An Ber Car Cle Da El Fer Flo Ger Hel Ir Jo Ka Lo Mal Mi Na Nor Or Pe Phi Ro Sa Si Te Thel Ul Vi Wil Xe Ze"
    ),
    _words(
        "bert dette dora fina frid garda land lina linde lotta mara minda mund nessa nika nora rick rinda sanda tilda "
        "ver vina zel"
    ),
)
RIVERS = (
    _words(
        "Al Ar Bre Cal Cla Dar Del Er Fal Gar Hel Is Ken Lar Lo Mar Mer Ner Or Pel Ro Sel Ta Tor Ul Ver Wen Yar"
    ),
    _words(
        "ber dan den der dle gan gow len lin mar mer nan nor ren rick ris row sel ska than thwin ven wyn"
    ),
)


def compound(*parts: str) -> str:
    """The parts written as one word; of a letter on both sides of a seam only one is kept (Ald + den: Alden)."""
    word = ""
    for part in parts:
        word += part[1:] if word and word[-1].lower() == part[0] else part
    return word
