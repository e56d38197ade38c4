// Stands in for a gloo header that libtorch's wheel does not ship; nothing of it is used.
#pragma once
