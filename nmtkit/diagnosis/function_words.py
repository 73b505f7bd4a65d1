"""The most frequent words of languages, by which lines in them are told."""

FUNCTION_WORDS = {
    "Bulgarian": (
        "и на да в се не за от е че с са по като до ще си той който но или при това има бе беше тя те аз ми му го ни "
        "ги ме как какво"
    ),
    "Catalan": (
        "el la els les de del i a en que no és un una per amb es va ser al més però com són molt aquest aquesta seu "
        "seva ho hi ha han quan què"
    ),
    "Croatian": (
        "je i u se na da su za od s ne sam bi što kao to ali iz koji koja nije će si smo bio mi ti kako ako sve jer "
        "samo bila gdje"
    ),
    "Czech": (
        "a v se na je že to s z do i ve jsem jsou byl byla jako za od po ale která který tak co když jeho jak jsme "
        "není být už by ten pro"
    ),
    "Danish": (
        "og i at det er en til af den på for med der de ikke som har et du jeg vi han kan var min hun skal ville fra "
        "men om så mig hvad hvor være blev efter ham sin"
    ),
    "Dutch": (
        "de het een en van ik is dat in te niet zijn op je die met voor er maar hij om was we ze aan wat heeft naar "
        "als ook hebben bij dit mijn heb kan nog hem dan uit door over wordt deze worden geen jij hoe"
    ),
    "English": (
        "the to of and a in is that it you for was on i he with this are have not be at as his they we she my what do "
        "but had has from your an can will there would me if her him one all so their were about when who been more "
        "did"
    ),
    "Estonian": "ja on ei ma see et ta oli mis kui sa aga ka oma me seda nad ning olen mu ole siis või tema selle",
    "Finnish": (
        "ja on ei hän se että oli mutta kun en ole minä niin joka mitä sen ovat myös olen kuin tämä nyt hänen sinä "
        "jos minun voi mukaan"
    ),
    "French": (
        "de la le et les des en un une du que est pas il je à qui dans ne ce pour sur vous elle au se nous plus avec "
        "par son mais tu sont cette ont ils être fait tout était leur on si aux sa ses ai comme où y même deux"
    ),
    "German": (
        "der die das und ist nicht ich zu den mit ein eine es sie er auf für von dem wir war hat im sich du auch wie "
        "des haben an aber einen sind was noch wenn nur mich kann sein bei nach einer dass mir habe ihr als am aus "
        "einem über hatte wird zum man wurde durch um keine mehr dich sehr vor"
    ),
    "Hungarian": (
        "a az és hogy nem is egy van ez de azt volt meg csak mint még ha el már ki nagyon vagy ő lesz fel én kell "
        "minden ezt itt"
    ),
    "Indonesian": (
        "yang dan di itu dengan untuk tidak ini dari dalam akan pada juga saya ke karena ada kami mereka adalah orang "
        "bisa dia kita anda sudah atau oleh telah"
    ),
    "Italian": (
        "di che e la il un a è per in una non sono mi con le si da i lo ho del ha come ma se nel della più gli anche "
        "al alla dei questo questa era ci io tu delle suo sua dal hanno quando molto cosa perché stato essere mio mia"
    ),
    "Latvian": "un ir ka uz ar no es tas par bija viņš kā bet tu nav vai lai pie mēs to tā man viņa kas pēc",
    "Lithuanian": "ir yra kad į ne su tai aš iš jis buvo kaip ar o bet po už prie jos mes nuo dėl apie jo taip man tik",
    "Polish": (
        "w i nie na się z do to że jest jak co ale po o za od tak ja czy był jego tego tym ma go już dla przez są być "
        "mnie przy była tylko mi jej ten"
    ),
    "Portuguese": (
        "de que o a e não um uma para em do da os é com se no na por mais as eu dos como mas ele ela foi ao muito das "
        "está você seu sua isso me são quando nos já tem à ser minha meu ou esta este até"
    ),
    "Romanian": (
        "și de în a la cu că nu o pe un este se din să pentru mai care au fost am ce sunt lui ei ale dar el ca sau fi "
        "va era mi te"
    ),
    "Russian": (
        "и в не на я что с он как это по но она из у за то все они мы вы от бы для же так его был была мне есть если "
        "меня ты к а только"
    ),
    "Slovak": (
        "a v sa na je že to s z do aj som sú bol bola ako za od po ale ktorý ktorá tak čo keď jeho nie byť už ten pre "
        "bolo si"
    ),
    "Slovenian": "je in v se na da za so ne pa z ki sem to kot bi od po s si tudi bil ali ni ti kaj če ga lahko bo",
    "Spanish": (
        "de la que el en y a los se no es un una por con las del lo su me para le más pero como está tu yo qué si "
        "este esta son fue muy al ha mi hay todo cuando sin él ella sus sobre ser era cómo dos nos porque tiene "
        "estaba"
    ),
    "Swedish": (
        "och i att det som en på är av för med till den har de inte om ett han men var jag sig från vi så kan när "
        "vill hon ska mig nu hade min efter mycket du honom eller"
    ),
    "Turkish": (
        "bir ve bu da de için ne çok o ben ile var mi mı değil gibi daha ama olarak en sen kadar her şey olan sonra "
        "onun bana"
    ),
    "Ukrainian": (
        "і в не на що я з у це та до як він за але ти мені є його вона від по так був для бути якщо про ми ви або "
        "тому мене"
    ),
    "Vietnamese": (
        "là và của có không tôi một những cho đã trong được với người các này chúng để ở rất khi đó như cũng từ ta về "
        "anh nó thì mà ra nhiều"
    ),
}
"""By language."""
